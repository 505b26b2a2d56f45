"""Job files: what RiseML's ``riseml.yml`` asks for, by the launcher's own means."""
