// The page is one small file and a few parts that are loaded when a screen needs them. Names are
// fixed: the files are part of a package, and a change of one is a change that can be read.
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/thermocline/server/console/built",
    emptyOutDir: true,
    assetsDir: "console",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    rollupOptions: {
      output: {
        entryFileNames: "console/[name].js",
        chunkFileNames: "console/[name].js",
        assetFileNames: "console/[name][extname]",
      },
    },
  },
});
