"""The export stages behind one small interface."""
