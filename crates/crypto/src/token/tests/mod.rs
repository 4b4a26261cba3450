mod contract;
mod formats;
