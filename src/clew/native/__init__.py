"""The native engine: C++ that records ops and takes statistics, built for one torch and Python."""
