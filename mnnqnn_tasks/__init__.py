"""mnnqnn: exports MNN LLMs to Qualcomm NPUs (QNN / HTP) as doit tasks."""
