"""What ``paceline migrate`` knows of Lightning: its names, and its expressions that no table can say."""
