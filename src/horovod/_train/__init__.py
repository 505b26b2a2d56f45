"""The parts shared by all adapters: argument rules, names, groups, objects."""
