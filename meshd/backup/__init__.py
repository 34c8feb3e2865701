"""What a new head needs, in one archive: `meshctl backup` makes it, `meshctl restore` puts it back."""
