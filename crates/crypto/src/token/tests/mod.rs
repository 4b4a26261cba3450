mod contract;
mod formats;
mod vectors;
