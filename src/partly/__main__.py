from partly.cli import main

main()
