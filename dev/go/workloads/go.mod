module yoke.drzzl.io/dev/workloads

go 1.26.0
