"""The MNN model file: schema, reader, writer, weights, shape inference, CPU model."""
