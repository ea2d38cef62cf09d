"""Code written for other trainers: run as it is, or translated."""
