"""The paper's comparison as a tool: methods, runs, results, tables and figures."""
