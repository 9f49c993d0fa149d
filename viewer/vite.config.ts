import { defineConfig } from "vite";

// One classic script and one style sheet with fixed names: a page from the disk may not load modules, and a committed bundle should differ
// only where the source does.
export default defineConfig({
  publicDir: "public",
  build: {
    outDir: "../eagle3_assets/view/static",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    reportCompressedSize: false,
    lib: { entry: "src/main.tsx", formats: ["iife"], name: "eagle3_view", fileName: () => "viewer.js", cssFileName: "viewer" },
  },
  define: { "process.env.NODE_ENV": '"production"' },
});
