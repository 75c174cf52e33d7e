-- What decides a trajectory's fate, as one number: the least of a trajectory wins. The upper half is the step that trained
-- it, or, above all steps, the time of the drop and then the first letters of its stage; the lower half is a hash of stage
-- and reason. A part that was written before has no such column: it is worked out when it is read, until a merge stores it.

ALTER TABLE step_members ADD COLUMN IF NOT EXISTS mark UInt128 MATERIALIZED
        if(fate = 'trained', bitShiftLeft(toUInt128(step), 64),
        bitShiftLeft(toUInt128(4611686018427387904 + bitShiftLeft(toUInt64(toUnixTimestamp64Milli(ended_at)), 16)
            + byteSwap(reinterpretAsUInt16('trainer'))), 64) + cityHash64('trainer', toString(ifNull(reason, ''))));

ALTER TABLE drop_trajectories ADD COLUMN IF NOT EXISTS mark UInt128 MATERIALIZED
        bitShiftLeft(toUInt128(4611686018427387904
        + bitShiftLeft(toUInt64(toUnixTimestamp64Milli(dropped_at)), 16) + byteSwap(reinterpretAsUInt16(toString(stage)))), 64)
        + cityHash64(toString(stage), toString(reason));
