"""The QNN library: finding it, binding it, graph IR, link, inspect, execute."""
