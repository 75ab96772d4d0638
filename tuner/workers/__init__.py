"""Worker processes: kernels run, and compilers compile, where they can do no harm to the tuner.

Nothing here imports torch when it is imported: the tuner's own process never makes a CUDA context.
"""
