"""Large arrays between the processes of one robot: figures 2 to 4 of Kwok 2024, with peers in the same run."""
