"""Graph sources (``graph*.cpp``) that MNN's ``compilefornpu`` wrote, read into ``net.json``."""
