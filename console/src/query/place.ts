// The position of an error in a text. The node counts bytes of UTF-8, an editor UTF-16 units.

/** The position in a text of its n-th byte. */
export function placeOfByte(text: string, byte: number): number {
  const data = new TextEncoder().encode(text);
  return new TextDecoder().decode(data.subarray(0, Math.max(0, byte))).length;
}

/** A position as a line and a column, both counted from one. */
export function lineOf(text: string, place: number): [line: number, column: number] {
  const before = text.slice(0, place).split("\n");
  return [before.length, (before.at(-1)?.length ?? 0) + 1];
}
