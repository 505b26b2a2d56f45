"""What every adapter shares and no framework defines: argument rules, names, groups, objects."""
