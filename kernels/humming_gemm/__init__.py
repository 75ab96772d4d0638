"""`humming`: NVFP4 GEMMs by the Humming kernel library, which vLLM and SGLang use on Hopper. See docs/humming.md."""
