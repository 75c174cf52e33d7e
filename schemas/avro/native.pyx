# cython: language_level=3, boundscheck=False, wraparound=False
"""A record's Avro body in C: its fields become nodes, and the nodes are walked for each record.

Fields are read from and put into the slots of a record directly, whose own rules are asked once it is filled.
`codec` uses `by_fastavro` only where this module was not built; the tests compare the two.
"""

from cpython.long cimport PyLong_AsLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import dataclasses
import sys
import typing
from functools import cache

from rollbus.schemas.avro.types import kind_of

cdef extern from *:
    """
    #include <structmember.h>

    /* Where an object keeps the field of a slot; -1 for a descriptor that is no slot's. */
    static Py_ssize_t slot_offset(PyObject *descriptor) {
        if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return -1;
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }

    static inline PyObject *in_slot(PyObject *record, Py_ssize_t offset) {
        return *(PyObject **)((char *)record + offset);
    }

    static inline void fill_slot(PyObject *record, Py_ssize_t offset, PyObject *value) {
        *(PyObject **)((char *)record + offset) = Py_NewRef(value);
    }
    """
    Py_ssize_t slot_offset(object descriptor)
    PyObject *in_slot(object record, Py_ssize_t offset)
    void fill_slot(object record, Py_ssize_t offset, object value)

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t items)
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    object PyUnicode_AsUTF8String(object text)
    object PyBytes_FromStringAndSize(const char *data, Py_ssize_t size)
    char *PyBytes_AS_STRING(object data)
    Py_ssize_t PyBytes_GET_SIZE(object data)

if sys.byteorder != "little":
    raise ImportError("doubles are copied as they lie in memory, which Avro wants little-endian")

cdef enum Kind:
    STR, BYTES, INT, FLOAT, BOOL, RECORD, OPTIONAL, TUPLE, MAP

_KINDS = {
    "str": STR,
    "bytes": BYTES,
    "int": INT,
    "float": FLOAT,
    "bool": BOOL,
    "record": RECORD,
    "optional": OPTIONAL,
    "tuple": TUPLE,
    "map": MAP,
}

cdef struct Input:
    const unsigned char *data
    Py_ssize_t at
    Py_ssize_t end

cdef struct Output:
    char *data
    Py_ssize_t size
    Py_ssize_t room


cdef class Node:
    """How a value of one type is written and read."""

    cdef Kind kind
    cdef Node inner
    cdef Py_ssize_t count
    cdef tuple nodes
    cdef Py_ssize_t *offsets
    cdef PyTypeObject *made
    cdef object record, check

    def __cinit__(self, hint):
        name, inner = kind_of(hint)
        self.kind = _KINDS[name]
        if self.kind == RECORD:
            self._fill(inner)
        elif self.kind in (OPTIONAL, TUPLE, MAP):
            self.inner = _node(inner)

    def __dealloc__(self):
        PyMem_Free(self.offsets)

    def _fill(self, record):
        """Take in the fields of a record: where each lies, and what it is."""
        hints = typing.get_type_hints(record)
        names = [field.name for field in dataclasses.fields(record)]
        self.record, self.check = record, getattr(record, "__post_init__", None)
        self.made = <PyTypeObject *>record
        self.count = len(names)
        self.nodes = tuple(_node(hints[name]) for name in names)
        self.offsets = <Py_ssize_t *>PyMem_Malloc(self.count * sizeof(Py_ssize_t))
        if self.offsets is NULL:
            raise MemoryError
        for number, name in enumerate(names):
            self.offsets[number] = slot_offset(getattr(record, name))
            if self.offsets[number] < 0:
                raise TypeError(f"{record.__name__}.{name} is no slot")

    def write(self, value, header):
        """Return the header and behind it the body; raises what does not fit as Python does."""
        cdef Output out
        out.size, out.room = 0, 1024
        out.data = <char *>PyMem_Malloc(out.room)
        if out.data is NULL:
            raise MemoryError
        try:
            _append(&out, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
            _write(self, value, &out)
            return PyBytes_FromStringAndSize(out.data, out.size)
        finally:
            PyMem_Free(out.data)

    def read(self, bytes data, Py_ssize_t at):
        """Return the record whose body begins there, and where it ends; EOFError says what it is cut short by."""
        cdef Input source
        source.data, source.at = <const unsigned char *>PyBytes_AS_STRING(data), at
        source.end = PyBytes_GET_SIZE(data)
        return _read(self, &source), source.at


@cache
def _node(hint):
    return Node(hint)


def writer(record):
    """Return the function that writes such a record behind a header."""
    return _node(record).write


def reader(record):
    """Return the function that reads such a record; it raises what the record itself raises."""
    return _node(record).read


# Writing


cdef int _append(Output *out, const void *data, Py_ssize_t size) except -1:
    cdef Py_ssize_t room = out.room
    cdef char *larger
    if out.size + size > room:
        while out.size + size > room:
            room *= 2
        larger = <char *>PyMem_Realloc(out.data, room)
        if larger is NULL:
            raise MemoryError
        out.data, out.room = larger, room
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef int _append_long(Output *out, int64_t value) except -1:
    """Write a long: zigzag, then seven bits a byte, the lowest first."""
    cdef uint64_t left = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef unsigned char digits[10]
    cdef Py_ssize_t count = 0
    while left > 127:
        digits[count] = <unsigned char>(left & 127 | 128)
        left >>= 7
        count += 1
    digits[count] = <unsigned char>left
    return _append(out, digits, count + 1)


cdef int _append_sized(Output *out, const void *data, Py_ssize_t size) except -1:
    _append_long(out, size)
    return _append(out, data, size)


cdef int _append_bytes(Output *out, object value) except -1:
    cdef const unsigned char[::1] view
    if isinstance(value, bytes):
        return _append_sized(out, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    view = memoryview(value).cast("B")
    if not view.shape[0]:
        return _append_long(out, 0)
    return _append_sized(out, &view[0], view.shape[0])


cdef int _append_text(Output *out, object value) except -1:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {type(value).__name__}")
    if PyUnicode_IS_COMPACT_ASCII(value):
        return _append_sized(out, PyUnicode_DATA(value), PyUnicode_GET_LENGTH(value))
    return _append_bytes(out, PyUnicode_AsUTF8String(value))


cdef int _write(Node node, object value, Output *out) except -1:
    cdef double number
    cdef char branch
    if node.kind == OPTIONAL:
        branch = 0 if value is None else 2
        _append(out, &branch, 1)
        if value is not None:
            _write(node.inner, value, out)
    elif node.kind == STR:
        _append_text(out, value)
    elif node.kind == INT:
        _append_long(out, PyLong_AsLongLong(value))
    elif node.kind == RECORD:
        _write_record(node, value, out)
    elif node.kind == BYTES:
        _append_bytes(out, value)
    elif node.kind == BOOL:
        branch = 1 if value else 0
        _append(out, &branch, 1)
    elif node.kind == FLOAT:
        number = value
        _append(out, &number, 8)
    else:
        _write_several(node, value, out)
    return 0


cdef int _write_record(Node node, object value, Output *out) except -1:
    cdef Py_ssize_t number
    cdef PyObject *field
    if not PyObject_TypeCheck(value, node.made):
        raise TypeError(f"expected a {node.record.__name__}, not {type(value).__name__}")
    for number in range(node.count):
        field = in_slot(value, node.offsets[number])
        if field is NULL:
            raise AttributeError(f"a {node.record.__name__} of which not every field is set")
        _write(<Node>node.nodes[number], <object>field, out)
    return 0


cdef int _write_several(Node node, object value, Output *out) except -1:
    """Write a sequence, or a map sorted so that equal maps give equal bytes, as one block and its end."""
    cdef char end = 0
    if value:
        _append_long(out, len(value))
        if node.kind == MAP:
            for key, item in sorted(value.items()):
                _append_text(out, key)
                _write(node.inner, item, out)
        else:
            for item in value:
                _write(node.inner, item, out)
    return _append(out, &end, 1)


# Reading


cdef object _cut_short(Py_ssize_t count):
    return EOFError(f"cut short by {count} bytes")


cdef int _need(Input *source, Py_ssize_t size) except -1:
    """Refuse to read over the end."""
    if size > source.end - source.at:
        raise _cut_short(size - (source.end - source.at))
    return 0


cdef int _byte(Input *source) except -1:
    _need(source, 1)
    source.at += 1
    return source.data[source.at - 1]


cdef int _read_zigzag(Input *source, uint64_t *value) except -1:
    cdef int byte = _byte(source), shift = 7
    value[0] = byte & 127
    while byte > 127:
        byte = _byte(source)
        if shift == 63 and byte > 1:
            raise ValueError("a number of more than 64 bits")
        value[0] |= <uint64_t>(byte & 127) << shift
        shift += 7
    return 0


cdef Py_ssize_t _read_size(Input *source) except -1:
    """Read the length of what follows, which must be there."""
    cdef uint64_t zigzag = 0
    _read_zigzag(source, &zigzag)
    if zigzag & 1:
        raise ValueError(f"a negative length: zigzag {zigzag}")
    _need(source, <Py_ssize_t>(zigzag >> 1))
    return <Py_ssize_t>(zigzag >> 1)


cdef object _read_text(Input *source):
    cdef Py_ssize_t size = _read_size(source)
    source.at += size
    return PyUnicode_DecodeUTF8(<const char *>source.data + source.at - size, size, NULL)


cdef object _read_bytes(Input *source):
    cdef Py_ssize_t size = _read_size(source)
    source.at += size
    return PyBytes_FromStringAndSize(<const char *>source.data + source.at - size, size)


cdef object _read(Node node, Input *source):
    cdef uint64_t zigzag = 0
    cdef double number
    cdef int branch
    if node.kind == OPTIONAL:
        branch = _byte(source)
        if branch == 0:
            return None
        if branch != 2:
            raise ValueError(f"branch {branch} of an optional value")
        return _read(node.inner, source)
    if node.kind == STR:
        return _read_text(source)
    if node.kind == INT:
        _read_zigzag(source, &zigzag)
        return <int64_t>(zigzag >> 1) ^ -<int64_t>(zigzag & 1)
    if node.kind == RECORD:
        return _read_record(node, source)
    if node.kind == BYTES:
        return _read_bytes(source)
    if node.kind == BOOL:
        return _byte(source) != 0
    if node.kind == FLOAT:
        _need(source, 8)
        memcpy(&number, source.data + source.at, 8)
        source.at += 8
        return number
    return _read_several(node, source)


cdef object _read_record(Node node, Input *source):
    cdef object made = PyType_GenericAlloc(node.made, 0)
    cdef Py_ssize_t number
    for number in range(node.count):
        fill_slot(made, node.offsets[number], _read(<Node>node.nodes[number], source))
    if node.check is not None:
        node.check(made)
    return made


cdef object _read_several(Node node, Input *source):
    """Read blocks until an empty one; a negative count is followed by the block's size in bytes."""
    cdef list several = []
    cdef dict found = {}
    cdef uint64_t zigzag = 0, left, ignored = 0
    while True:
        _read_zigzag(source, &zigzag)
        if zigzag == 0:
            return found if node.kind == MAP else tuple(several)
        if zigzag & 1:
            _read_zigzag(source, &ignored)
        left = (zigzag >> 1) + (zigzag & 1)
        if left > <uint64_t>(source.end - source.at):
            raise EOFError(f"cut short: {left} items are said to follow")
        while left:
            if node.kind == MAP:
                key = _read_text(source)
                found[key] = _read(node.inner, source)
            else:
                several.append(_read(node.inner, source))
            left -= 1
