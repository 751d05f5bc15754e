from hashee.cli import main

main()
