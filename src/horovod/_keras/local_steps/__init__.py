"""LocalSGD and DiLoCo for optimizers of Keras 3; only ``api`` loads without Keras."""
