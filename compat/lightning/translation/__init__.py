"""From Lightning's names, arguments and places in the loop to ours. Nothing here trains anything."""
