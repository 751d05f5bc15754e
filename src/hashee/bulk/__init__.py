"""Any number of rows scored into a folder of parts, on this machine or on a Ray cluster; a killed run goes on."""
