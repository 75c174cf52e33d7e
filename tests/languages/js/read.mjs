// Read records with avsc: lines of `{"schema", "hex"}` on standard input, the same records as lines of JSON on standard output.
// Whole numbers come out as decimal texts, because a number of JavaScript has 53 bits; bytes as hexadecimal digits.
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
const avro = createRequire(process.argv[2] + "/")("avsc");

const long = avro.types.LongType.__with({
  fromBuffer: (bytes) => bytes.readBigInt64LE(),
  toBuffer: (value) => { const bytes = Buffer.alloc(8); bytes.writeBigInt64LE(value); return bytes; },
  fromJSON: BigInt, toJSON: String, isValid: (value) => typeof value === "bigint", compare: (a, b) => (a < b ? -1 : +(a > b)),
});
const plain = (key, value) => typeof value === "bigint" ? String(value) : value;
const unpack = (value) => {
  if (Buffer.isBuffer(value)) return value.toString("hex");
  if (Array.isArray(value)) return value.map(unpack);
  if (value !== null && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, unpack(v)]));
  return value;
};
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const {schema, hex} = JSON.parse(line);
  const type = avro.Type.forSchema(schema, {registry: {long}, wrapUnions: "never"});
  const record = type.fromBuffer(Buffer.from(hex, "hex").subarray(10));
  if (type.toBuffer(record).toString("hex") !== hex.slice(20)) throw new Error(`${schema.name} is written as other bytes`);
  console.log(JSON.stringify(unpack(record), plain));
}
