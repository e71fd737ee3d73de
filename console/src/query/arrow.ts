// An Arrow stream as rows of text and numbers with every digit, for the grid and the chart.
import { type Column, type Table, tableFromIPC, Type } from "@uwdata/flechette";

export interface Rows {
  names: string[];
  types: string[];
  count: number;
  /** The text of a cell; null where there is no value. */
  text(column: number, row: number): string | null;
  /** Whether a column has numbers or times: it can be drawn, and is aligned to the right. */
  isNumeric(column: number): boolean;
  isTime(column: number): boolean;
  /** A column as doubles (times as milliseconds) for drawing; NaN where there is no value. */
  numbers(column: number): Float64Array;
}

const PER_SECOND = [1n, 1_000n, 1_000_000n, 1_000_000_000n];
const UNITS = ["s", "ms", "µs", "ns"];
const NUMBERS = new Set<number>([Type.Int, Type.Float, Type.Decimal]);

export function decoded(data: Uint8Array): Rows {
  const table = tableFromIPC(data, { useBigInt: true, useDecimalInt: true });
  const columns = table.names.map((_, place) => table.getChildAt(place));
  return {
    names: table.names.slice(),
    types: columns.map((column) => typeName(column.type)),
    count: table.numRows,
    text: (column, row) => cellText(at(columns, column), row),
    isNumeric: (column) => NUMBERS.has(typeOf(at(columns, column)).typeId),
    isTime: (column) => isMoment(typeOf(at(columns, column))),
    numbers: (column) => numbersOf(at(columns, column), table),
  };
}

// The library types a column's type as a union of thirty; only the fields tell which one it is.
interface AnyType {
  typeId: number;
  unit?: number;
  scale?: number;
  bitWidth?: number;
  timezone?: string | null;
  signed?: boolean;
  precision?: number;
}

function typeOf(column: Column<unknown>): AnyType {
  return column.type as unknown as AnyType;
}

function at(columns: Column<unknown>[], place: number): Column<unknown> {
  const column = columns[place];
  if (!column) throw new Error("no such column");
  return column;
}

function isMoment(type: AnyType): boolean {
  return type.typeId === Type.Timestamp || type.typeId === Type.Date;
}

/** The value as it is stored, before the library makes a double of it. */
function stored(column: Column<unknown>, row: number): bigint | number | null {
  const { data, offsets } = column;
  let low = 0;
  let high = data.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((offsets[middle] ?? 0) <= row) low = middle;
    else high = middle - 1;
  }
  const batch = data[low] as unknown as {
    nullCount: number;
    isValid(place: number): boolean;
    values: ArrayLike<bigint | number>;
  };
  const place = row - (offsets[low] ?? 0);
  if (batch.nullCount && !batch.isValid(place)) return null;
  return batch.values[place] ?? null;
}

function cellText(column: Column<unknown>, row: number): string | null {
  const type = typeOf(column);
  if (type.typeId === Type.Timestamp) {
    const value = stored(column, row);
    return value === null ? null : momentText(BigInt(value), type.unit ?? 0);
  }
  const value = column.at(row);
  return value === null || value === undefined ? null : valueText(value, type);
}

function valueText(value: unknown, type: AnyType): string {
  switch (type.typeId) {
    case Type.Decimal:
      return decimalText(BigInt(value as bigint), type.scale ?? 0);
    case Type.Date:
      return dayText(Number(value));
    case Type.Time:
      return momentText(BigInt(value as bigint), type.unit ?? 0).slice(11);
    case Type.Duration:
      return `${String(value)} ${UNITS[type.unit ?? 0]}`;
    default:
      return plainText(value);
  }
}

function plainText(value: unknown): string {
  if (value instanceof Uint8Array) {
    return Array.from(value, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }
  return typeof value === "object" ? JSON.stringify(value, inside) : String(value);
}

function inside(_: string, value: unknown): unknown {
  if (typeof value === "bigint") return value.toString();
  if (value instanceof Map) return Object.fromEntries(value);
  if (value instanceof Uint8Array) return plainText(value);
  return ArrayBuffer.isView(value) ? Array.from(value as unknown as ArrayLike<unknown>) : value;
}

function decimalText(value: bigint, scale: number): string {
  if (!scale) return value.toString();
  const digits = (value < 0n ? -value : value).toString().padStart(scale + 1, "0");
  return `${value < 0n ? "-" : ""}${digits.slice(0, -scale)}.${digits.slice(-scale)}`;
}

function dayText(milliseconds: number): string {
  const day = new Date(milliseconds);
  return Number.isNaN(day.getTime()) ? String(milliseconds) : day.toISOString().slice(0, -14);
}

/** A count of units since 1970 as a date and a clock time, with all digits. */
export function momentText(value: bigint, unit: number): string {
  const each = PER_SECOND[unit] ?? 1n;
  let second = value / each;
  let rest = value % each;
  if (rest < 0n) {
    second -= 1n;
    rest += each;
  }
  const day = new Date(Number(second) * 1000);
  if (Number.isNaN(day.getTime())) return `${value} ${UNITS[unit]}`;
  const fraction = rest ? `.${rest.toString().padStart(unit * 3, "0").replace(/0+$/, "")}` : "";
  return day.toISOString().slice(0, -5).replace("T", " ") + fraction;
}

function numbersOf(column: Column<unknown>, table: Table): Float64Array {
  const type = typeOf(column);
  const made = new Float64Array(table.numRows);
  const scale = type.typeId === Type.Decimal ? 10 ** (type.scale ?? 0) : 1;
  let row = 0;
  for (const value of column) {
    made[row] = value === null || value === undefined ? NaN : Number(value) / scale;
    row += 1;
  }
  return made;
}

function typeName(type: unknown): string {
  const { typeId, unit, scale, bitWidth, signed, timezone, precision } = type as AnyType;
  const name = (Object.entries(Type).find(([, id]) => id === typeId)?.[0] ?? "").toLowerCase();
  if (typeId === Type.Int) return `${signed ? "" : "u"}int${bitWidth}`;
  if (typeId === Type.Float) return ["half", "float", "double"][precision ?? 2] ?? name;
  if (typeId === Type.Decimal) return `decimal(${precision},${scale})`;
  if (typeId === Type.Timestamp) return `timestamp ${UNITS[unit ?? 0]}${timezone ? " UTC" : ""}`;
  return name === "utf8" || name === "largeutf8" || name === "utf8view" ? "text" : name;
}
