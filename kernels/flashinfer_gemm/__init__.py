"""FlashInfer's NVFP4 GEMMs. What runs where, and what was only compiled or read, is in docs/flashinfer.md."""
