"""What all of the package uses: checks of arguments, names loaded when used, file operations."""
