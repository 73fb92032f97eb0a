"""Where experience comes from: compiled environments, Gymnasium, control tasks, several processes."""
