"""Large arrays between the processes of one robot: figures 2 to 4 of Kwok (HPRM), with peers in the same run."""
