"""L1-penalised linear models: estimators, paths, working sets."""
