// An answer as a file. The query is run again, in the format that is wanted, without a limit.
import { fetched } from "../api";

export const FORMATS = { csv: "CSV", parquet: "Parquet", json: "JSON" } as const;
export type DownloadFormat = keyof typeof FORMATS;

export async function download(sql: string, format: DownloadFormat): Promise<void> {
  const response = await fetched("query", { body: { sql, format } });
  const blob = await response.blob(); // rejects where the answer was cut
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `answer.${format}`;
  document.body.append(link);
  link.click();
  link.remove();
  URL.revokeObjectURL(link.href);
}
