//! Halfhitch's IREE backend, shared by every HAL driver.
