"""GEMMs written in Triton: `triton.dequant` decodes in the kernel, `triton.native` uses FP4 matrix units.

| module | what |
|---|---|
| `compiler` | compile a kernel ahead, without a GPU, and launch exactly that one later |
| `facts` | registers, stack, shared memory and matrix instructions of what was compiled |
| `pruning` | what can be told of a tile before it is compiled |
| `grouping` | tiles of a grouped problem over program ids |
| `native`, `native_*` | `triton.native` |
| `dequant`, `dequant_*` | `triton.dequant` |

Only the modules that hold kernels (`native_kernels`, `dequant_decode`, `dequant_fragment`, `dequant_tile`) import
Triton when they are imported.
"""
