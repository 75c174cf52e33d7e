"""The Go client's first question, and its answer, which makes the client speak the engine's form of blocks."""

GO_HELLO = b"SELECT displayName(), version(), revision(), timezone()"


def answer_go_hello(version: str, timezone: str) -> bytes:
    """Return the answer to the Go client's first question: one Native block that gives revision 0.

    Go reads this block in its own newest revision, and all later ones in the revision that the block gives. The engine
    writes blocks of revision 0: without the information before a block and the flag after a column's type.
    """

    def text(value: str) -> bytes:
        return bytes([len(value.encode())]) + value.encode()

    columns = (
        ("displayName()", "String", text("rollbus")),
        ("version()", "String", text(version)),
        ("revision()", "UInt32", bytes(4)),
        ("timezone()", "String", text(timezone)),
    )
    flag = b"\x00"
    block = b"".join(text(name) + text(kind) + flag + value for name, kind, value in columns)
    return b"\x01\x00\x02\xff\xff\xff\xff\x00" + bytes([len(columns), 1]) + block
