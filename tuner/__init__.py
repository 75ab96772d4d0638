"""The job: checkpoint, workload, search, measure, gate, select, store."""
