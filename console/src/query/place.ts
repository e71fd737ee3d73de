// Where in a text an error is. The node counts bytes of UTF-8, an editor UTF-16 units.

/** The place in a text of its n-th byte. */
export function placeOfByte(text: string, byte: number): number {
  const data = new TextEncoder().encode(text);
  return new TextDecoder().decode(data.subarray(0, Math.max(0, byte))).length;
}

/** A place as a line and a column, both from one. */
export function lineOf(text: string, place: number): [line: number, column: number] {
  const before = text.slice(0, place).split("\n");
  return [before.length, (before.at(-1)?.length ?? 0) + 1];
}
