"""Figure 6 of Kwok (HPRM) with the means available here: a robot that drives by camera, over several transports."""
