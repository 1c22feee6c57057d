"""The tasks of pipelines of ``kind: genie``: names, compile, config, lint, bundle."""
