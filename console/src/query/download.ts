// An answer as a file: runs the query again in the chosen format, without a limit of rows.
import { fetched } from "../api";

export const FORMATS = { csv: "CSV", parquet: "Parquet", json: "JSON" } as const;
export type DownloadFormat = keyof typeof FORMATS;

export async function download(sql: string, format: DownloadFormat): Promise<void> {
  const response = await fetched("query", { body: { sql, format } });
  const blob = await response.blob(); // rejects if the answer was truncated
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `answer.${format}`;
  document.body.append(link);
  link.click();
  link.remove();
  URL.revokeObjectURL(link.href);
}
