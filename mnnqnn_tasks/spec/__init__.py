"""YAML pipelines: validated, resolved, frozen."""
