"""What a GEMM is, and the ways to run one. Imports nothing of the project."""
