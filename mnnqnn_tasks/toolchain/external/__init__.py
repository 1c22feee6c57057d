"""The stages with a user's own tools: an MNN build, a QAIRT SDK."""
