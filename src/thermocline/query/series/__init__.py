"""Functions over series of samples: rates, increases, differences, histograms and filled gaps."""
