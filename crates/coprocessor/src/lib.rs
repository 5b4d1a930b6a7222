//! A coprocessor that is a process: vrings, name service, firmware services.
