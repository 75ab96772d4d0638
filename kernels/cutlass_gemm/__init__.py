"""`cutlass`: our own NVFP4 GEMM for SM120 and SM121, made with CUTLASS's CollectiveBuilder. See docs/cutlass.md."""
