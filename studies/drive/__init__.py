"""Figure 6 of Kwok (HPRM) on what can be had here: a robot that drives by camera, over several transports."""
